"""What every room may use: errors, files, settings, registries, tasks, the device."""
