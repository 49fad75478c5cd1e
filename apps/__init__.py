"""What uses the core, or plugs into it by name; the core knows none of it."""
