"""Models of other toolkits, in and out. Importing this registers the readers of this package."""

from nmtkit.convert import ctranslate2 as ctranslate2
from nmtkit.convert import joey as joey
from nmtkit.convert import opennmt as opennmt
