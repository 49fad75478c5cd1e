"""The tools of the chaos programme: processes, faults, and the report of the results."""
