"""What the chaos programme is made of: processes, faults, and the report of what they did."""
