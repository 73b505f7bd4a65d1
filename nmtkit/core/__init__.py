"""Modules that all packages share: errors, files, settings, registries, processes and the device."""
