"""Models of other toolkits, in and out. Importing this registers the readers of this package."""

from nmtkit.interchange import ctranslate2 as ctranslate2
from nmtkit.interchange import joey as joey
from nmtkit.interchange import opennmt as opennmt
