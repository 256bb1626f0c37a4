"""Rules for usual kinds of personal data and secrets: where a text has them, as ranges of characters.

Numbers are checked where they have a checksum, so that an order number is no credit card. None of them is complete:
an address or a name needs a rule of one's own.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator

Span = tuple[int, int]
"""First character, and the one after the last."""
Find = Callable[[str], Iterable[Span]]

EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?!\w)")
PHONE = re.compile(
    r"(?<![\w.])(?<!\d )(?:(?:\+|00)[1-9](?:[ \-./()]{0,2}\d){6,14}|0\d(?:[ \-/()]{0,2}\d){7,12}"
    r"|\(?[2-9]\d{2}\)?[ \-.]{1,2}\d{3}[ \-.]\d{4})(?![\w])"
)
CARD = re.compile(r"(?<![\w-])\d(?:[ -]?\d){12,18}(?![\w-])")
IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)", re.IGNORECASE)
IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)")
IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-f]{0,4}:){3,7}[0-9a-f]{0,4}(?![\w:])", re.IGNORECASE)
API_KEY = re.compile(
    r"(?i:\bbearer\s+)[\w.~+/=-]{12,}|\b(?:sk|pk|rk)[-_][\w-]{16,}|\bgh[oprsu]_\w{30,}|\bgithub_pat_\w{22,}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bxox[abeoprs]-[\w-]{10,}|\bAIza[\w-]{35}|\bhf_[A-Za-z0-9]{30,}|\bglpat-[\w-]{20,}"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,}|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----"
)
KEY_SIGNS = re.compile(
    r"[sprk]k[-_]|gh[oprsu]_|github_pat_|A[KS]IA|xox|AIza|hf_|glpat-|eyJ|-----BEGIN |[Bb][Ee][Aa][Rr][Ee][Rr]"
)
"""Characters that every key begins with, or has before it: a text without them is not searched further."""
LEAST_IPV6_PARTS = 3


def _by(pattern: re.Pattern[str], accepts: Callable[[str], bool] = bool, sign: str = "") -> Find:
    """Returns the rule of an expression; `sign` is in every text that it matches, and found faster."""
    has_sign = re.compile(sign).search

    def find(text: str) -> Iterator[Span]:
        return (match.span() for match in pattern.finditer(text) if accepts(match[0])) if has_sign(text) else iter(())

    return find


def has_luhn_digit(number: str) -> bool:
    """Returns True if the last digit of a number is its check digit by Luhn's rule; other characters do not count."""
    digits = [int(digit) for digit in number if digit.isdecimal()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def is_iban(text: str) -> bool:
    """Returns True if the check digits of an account number by ISO 13616 are right."""
    number = text.replace(" ", "").upper()
    return int("".join(str(int(character, 36)) for character in number[4:] + number[:4])) % 97 == 1


def is_ip_address(text: str) -> bool:
    """Returns True for an address of IPv4, or of IPv6 with at least three parts."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.version == 4 or len([part for part in text.split(":") if part]) >= LEAST_IPV6_PARTS


def _find_ip_addresses(text: str) -> Iterator[Span]:
    for pattern, sign in ((IPV4, r"\d\.\d"), (IPV6, r":[0-9A-Fa-f]{0,4}:")):
        yield from _by(pattern, is_ip_address, sign)(text)


KNOWN_KINDS: dict[str, Find] = {
    "email": _by(EMAIL, sign="@"),
    "phone": _by(PHONE),
    "credit_card": _by(CARD, has_luhn_digit),
    "iban": _by(IBAN, is_iban, r"[A-Za-z]{2}\d\d"),
    "ip_address": _find_ip_addresses,
    "api_key": _by(API_KEY, sign=KEY_SIGNS.pattern),
}
"""Rules by the names that a recipe has for them."""
