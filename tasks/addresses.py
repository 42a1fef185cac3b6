"""Addresses that hold a user and a password: taken apart where they are used, and never told."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

# Up to the last @ before the path: a password may hold one itself. SQLAlchemy takes a password as a query's value, too.
_USER = re.compile(r"(?<=://)[^\s/?#'\"]*@")
_QUERY = re.compile(r"(?<=[?&])(\w*(?:password|passwd|token|secret|api_key))=[^&\s'\"]+", re.IGNORECASE)


class Address(NamedTuple):
    """`url` without what `user` and `password` say."""

    url: str
    user: str | None
    password: str | None


def taken_apart(url: str) -> Address:
    """Raises ValueError for what is no URL."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    user, password = (None if word is None else unquote(word) for word in (parts.username, parts.password))
    return Address(parts._replace(netloc=host).geturl(), user, password)


def told(text: str) -> str:
    """`text` with *** for the user and password of every address in it."""
    return _QUERY.sub(r"\1=***", _USER.sub("***@", text))
