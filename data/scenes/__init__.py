"""Small pictures of coloured shapes, each with a caption and with the region of every word that names a shape.

Read the files in this order: `shapes` (what can stand in a picture, and its pixels) and `corpus` (whole scenes: where
things stand, and the caption that follows from it).
"""
