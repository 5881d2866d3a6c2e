"""A request explained for people: section by section, in the order in which things happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.cli.present import cell, print_table, show_record
