"""Models, objectives and tasks that are useful for teaching, but that few people need daily.

They use only the interfaces documented in `nmtkit guide extending`, like a user's own file. No
other package imports this one: registries import a module when a recipe names one of its members.
"""
