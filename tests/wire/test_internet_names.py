"""Names of hosts and services, as getent(1) prints them."""

from __future__ import annotations

import subprocess

import pytest

from kinst.wire.internet_names import host_name, service_name


def getent(database: str, key: str) -> list[str]:
    ran = subprocess.run(["getent", database, key], capture_output=True, text=True, check=False)
    return ran.stdout.split()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_an_address_has_the_name_of_the_host(address: str) -> None:
    known = getent("hosts", address)
    assert host_name(address) == (known[1] if known else address)


@pytest.mark.parametrize("text", ["", "<none>", "1.2.3", "a\0b", "::g", "host.example"])
def test_what_is_no_address_stays_as_it_is(text: str) -> None:
    assert host_name(text) == text


@pytest.mark.parametrize("port", [22, 25, 80, 443])
def test_a_port_has_the_name_of_its_service(port: int) -> None:
    known = getent("services", str(port))
    assert service_name(port) == (known[0] if known else str(port))


def test_a_port_without_a_service_is_a_number() -> None:
    assert not getent("services", "65533") and service_name(65533) == "65533"
