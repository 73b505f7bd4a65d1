"""Public corpora by name: what is to be had and from where, fetched, unpacked, read, filtered, split and written.

Importing this package registers every source and every reader.
"""

from nmtkit.corpora import debian_readers as debian_readers
from nmtkit.corpora import readers as readers
from nmtkit.corpora import sources as sources
from nmtkit.corpora import stories as stories
