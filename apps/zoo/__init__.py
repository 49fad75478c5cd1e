"""The zoo: trained models that come with the project."""
