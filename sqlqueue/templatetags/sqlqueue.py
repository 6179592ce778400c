"""What the admin's templates use: times with their zone, the labels that cells have on narrow screens, and the database
that a page shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django import template
from django.urls import NoReverseMatch, get_resolver, get_urlconf, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import capfirst

from sqlqueue.conf import settings
from sqlqueue.core.logfmt import printable
from sqlqueue.database.log import home_log
from sqlqueue.database.tables import is_beside_the_log
from sqlqueue.stats import texts

register = template.Library()

CELL = re.compile(r"^<(td|th)\b")


register.filter("moment", texts.moment)


@register.filter
def duration(seconds: float | None, none: str = "–") -> str:
    """Return a length of time as a text."""
    return none if seconds is None else texts.duration(seconds)


@register.filter
def harmless(text: object) -> str:
    """Return data of a publisher or handler with what a browser would obey or hide escaped, but for line ends."""
    return printable(str(text), keep="\n\t")


@register.filter
def labelled(row: Sequence[str], headers: Sequence[Mapping[str, Any]]) -> Iterator[SafeString]:
    """Yield the cells of a row of Django's list, each with its column's heading as `data-label`."""
    for cell, header in zip(row, headers):
        if "action-checkbox" in header.get("class_attrib", ""):
            yield mark_safe(cell)  # Django's own markup, as in the line below
            continue
        tag, rest = CELL.match(str(cell)), CELL.sub("", str(cell), count=1)
        assert tag is not None
        label = format_html(' data-label="{}"', capfirst(header["text"]))
        yield mark_safe(f"{tag[0]}{label}{rest}")


@register.inclusion_tag("admin/sqlqueue/databases.html", takes_context=True)
def databases(context: Mapping[str, Any]) -> dict[str, Any]:
    """Show the database that a page is about, and the others, with links to their pages where the project has any.
    Nothing if there is one log only."""
    here = (context.get("sqlqueue_log") or home_log()).label
    names = [alias for alias in settings.aliases if alias != here] if here else []
    opts = context.get("opts")
    page = "index"
    if opts and is_beside_the_log(opts.app_label):
        page = f"{opts.app_label}_{opts.model_name}_changelist"
    return {"database": here, "others": [(name, _page_of(name, page)) for name in names]}


def _page_of(database: str, page: str) -> str:
    """Return the URL of a page in the site of a database, which is the project's own for DATABASE; "" if it has
    none."""
    sites = [f"sqlqueue_{database}"]
    if database == settings.DATABASE:
        of_databases = {f"sqlqueue_{alias}" for alias in settings.aliases}
        sites += [site for site in get_resolver(get_urlconf()).app_dict.get("admin", ()) if site not in of_databases]
    for site in sites:
        try:
            return reverse(f"{site}:{page}")
        except NoReverseMatch:
            continue
    return ""
