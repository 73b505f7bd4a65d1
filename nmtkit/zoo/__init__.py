"""Models, objectives and tasks that are useful for teaching but that few people need every day.

They use only the interfaces documented in `nmtkit guide extending`, as a user's own file would. No other package
imports this one: registries import a module when a recipe names one of its members.
"""
