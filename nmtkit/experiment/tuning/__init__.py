"""What this machine does quickest, found by measuring it: settings that a recipe leaves open (`auto`)."""
