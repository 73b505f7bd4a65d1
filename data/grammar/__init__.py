"""A small paired grammar of English and French: every English phrase is built together with its French translation.

Read the files in this order: `text` (what a word and an alignment link are), `french` and `english` (inflection),
`lexicon` (the words), `nominals` (noun phrases), `clauses` (verbs and sentences), `sampling` (random choice).
Nothing but `sampling` draws random numbers; all the rest can be called by hand with chosen words.
"""
