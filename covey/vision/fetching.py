"""Pictures by address, where `allow_image_urls` asks for them: over https, from public addresses alone, within limits.

A dataset is text of strangers, and an address in it is a request that they make from inside of your network. So
- every name is looked up here, and the connection goes to the address that was looked at: a name that points elsewhere the next time
  gains nothing. One private address among those of a name refuses it;
- the same holds behind each redirect;
- nothing of the surroundings goes along: no proxy, no cookie, no login.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2

SECONDS = 10.0
"""For the whole, names and redirects included."""
TOO_LATE = "took more than {:g} s"
MOST_BYTES = 20_000_000
MOST_REDIRECTS = 5
WITHIN = ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")
"""Networks of IPv6 whose addresses stand for others of IPv4, which may be private."""


class NotFetched(Exception):
    """There is no picture at an address, or it is not asked for: what is wrong, as the end of a sentence."""


def fetched(url: str) -> bytes:
    """Return what lies at an address.

    Raises:
        NotFetched: says why.
    """
    outcome: list[bytes | NotFetched] = []

    def work() -> None:
        try:
            outcome.append(_followed(url))
        except NotFetched as error:
            outcome.append(error)
        except (
            Exception
        ) as error:  # of libraries for names, certificates and transport, which raise many kinds
            outcome.append(NotFetched(f"cannot be fetched ({type(error).__name__}: {error})"))

    # No library limits the seconds of a whole request, names included.
    thread = threading.Thread(target=work, name="covey-picture", daemon=True)
    thread.start()
    thread.join(SECONDS)
    found = outcome[0] if outcome else NotFetched(TOO_LATE.format(SECONDS))
    if isinstance(found, NotFetched):
        raise found
    return found


def _followed(url: str) -> bytes:
    """Return what lies at an address, redirects followed."""
    import httpx2

    target = httpx2.URL(url)
    limits = httpx2.Timeout(SECONDS)
    try:
        with httpx2.Client(verify=trust(), trust_env=False, timeout=limits, cookies=None) as client:
            for _ in range(MOST_REDIRECTS + 1):
                with _answer(client, target) as response:
                    if not response.is_redirect:
                        return _body(response)
                    target = target.join(response.headers["Location"])
    except httpx2.TimeoutException:  # of one step, seen before the limit of the whole
        raise NotFetched(TOO_LATE.format(SECONDS)) from None
    raise NotFetched(f"redirects more than {MOST_REDIRECTS} times")


def _body(response: httpx2.Response) -> bytes:
    """Return what an answer holds, read no further than the limit."""
    if not response.is_success:
        raise NotFetched(f"answers with status {response.status_code}")
    body = bytearray()
    for part in response.iter_raw():
        body += part
        if len(body) > MOST_BYTES:
            raise NotFetched(f"is larger than {MOST_BYTES / 1e6:g} MB")
    return bytes(body)


def trust() -> ssl.SSLContext:
    """Return whose certificates are believed: those that the system believes."""
    return ssl.create_default_context()


@contextmanager
def _answer(client: httpx2.Client, target: httpx2.URL) -> Iterator[httpx2.Response]:
    """Ask the address that a name has now, and no other; the certificate must be that of the name."""
    if target.scheme != "https" or not target.host:
        raise NotFetched(f"leads to {target.scheme or 'nothing'}://, and https:// alone is fetched")
    if target.userinfo:
        raise NotFetched("holds a login, and none is sent")
    place = checked_address(target.host, target.port or 443)
    headers = {
        "Host": target.netloc.decode("ascii"),
        "Accept": "image/*",
        "Accept-Encoding": "identity",
        "User-Agent": "covey",
    }
    names = {"sni_hostname": target.raw_host.decode("ascii")}
    with client.stream("GET", target.copy_with(host=place), headers=headers, extensions=names) as response:
        yield response


def checked_address(host: str, port: int) -> str:
    """Return an address of a host; refuse a host that has one which is not public.

    Raises:
        NotFetched: it does, or has none.
    """
    try:
        found = looked_up(host, port)
    except (OSError, UnicodeError) as error:
        raise NotFetched(f"names a host that is not found ({error})") from error
    for address in found:
        if not is_public(address):
            raise NotFetched(f"leads to {address}, which is not public")
    return found[0]


def looked_up(host: str, port: int) -> list[str]:
    """Return the addresses of a host."""
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def is_public(address: str) -> bool:
    """Return whether an address is one of the public internet, and stands for no other."""
    place = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(place, ipaddress.IPv6Address):
        stands_for_other = place.ipv4_mapped or any(place in ipaddress.ip_network(n) for n in WITHIN)
        if stands_for_other:
            return False
    return place.is_global and not place.is_multicast
