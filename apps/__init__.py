"""Applications built on the core, or plugged into it by name. The core imports none of them."""
