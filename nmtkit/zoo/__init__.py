"""Models, objectives and tasks of lectures that few people need daily.

They are written against what `nmtkit guide extending` documents, as a file of a user would be. Nothing imports this
package: registries import a module of it when a recipe names one of its members.
"""
