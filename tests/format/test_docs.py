"""docs/format.md is printed from the declarations; a change of one without the other fails here."""

from __future__ import annotations

import runpy
from pathlib import Path

from kvformat import layout

DOCS = Path(__file__).parents[2] / "docs"


def test_the_tables_of_format_md_are_those_of_the_declaration() -> None:
    make_format = runpy.run_path(str(DOCS / "make_format.py"))
    assert make_format["page_with_tables"]() == (DOCS / "format.md").read_text(), (
        "run: python docs/make_format.py --write"
    )


def test_every_declared_field_is_in_the_page() -> None:
    page = (DOCS / "format.md").read_text()
    for declaration in (
        layout.HEADER,
        layout.TEXT,
        layout.WORDS,
        layout.PAYLOAD_FRONT,
        layout.LAYER,
        layout.KTM_ENTRY,
        layout.TITLE,
        layout.FOOTER,
    ):
        for field in declaration.subcons:
            assert f"`{field.name}` | {field.docs}" in page
