"""Shared by all packages: errors, files, settings, registries, tasks and the device."""
