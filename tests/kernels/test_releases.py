"""Names of Debian's kernels, as its packages have them and as people ask for them."""

from __future__ import annotations

import pytest

from kinst.kernels.releases import asked, names_release, newest, parse

# From the package lists of Debian 11 to 14, in the order of their versions.
RELEASES = [
    "5.10.0-9-cloud-amd64",
    "5.10.0-46-amd64",
    "6.1.0-0.deb11.52-rt-amd64",
    "6.1.0-56-cloud-arm64",
    "6.12.9+deb13-riscv64",
    "6.12.10+deb13-riscv64",
    "6.12.10+deb13+1-riscv64",
    "6.12.115+deb13-cloud-arm64",
    "6.12.115+deb13.1-cloud-arm64",
    "6.12.117+deb13-arm64-16k",
    "7.3.4+deb13-amd64",
]


@pytest.mark.parametrize(
    ("name", "flavour", "architecture", "short"),
    [
        ("5.10.0-46-cloud-amd64", "cloud", "amd64", "5.10-cloud"),
        ("6.1.0-0.deb11.52-rt-amd64", "rt", "amd64", "6.1-rt"),
        ("6.1.0-56-amd64", "", "amd64", "6.1-generic"),
        ("6.12.117+deb13-arm64-16k", "16k", "arm64", "6.12-16k"),
        ("6.12.10+deb13+1-riscv64", "", "riscv64", "6.12-generic"),
    ],
)
def test_parts_of_a_release(name: str, flavour: str, architecture: str, short: str) -> None:
    release = parse(name)
    assert release is not None
    found = (release.name, release.flavour, release.architecture, release.short)
    assert found == (name, flavour, architecture, short)


def test_order_of_versions() -> None:
    releases = [release for release in map(parse, RELEASES) if release is not None]
    assert len(releases) == len(RELEASES)
    assert sorted(releases, key=lambda release: release.version) == releases
    assert newest(releases) == releases[-1]
    assert newest([]) is None


@pytest.mark.parametrize("name", ["amd64", "cloud-amd64", "6.12-amd64", "6.1", ""])
def test_packages_that_are_no_release(name: str) -> None:
    """Debian's packages without a version of their own depend on the newest one."""
    assert parse(name) is None


@pytest.mark.parametrize(
    "text", ["vmlinux", "./6.12", "bzImage-6.1", "6", "6.", "6.12-huge", "debian:", "6.12 ", "list"]
)
def test_files_are_not_versions(text: str) -> None:
    assert not names_release(text)


@pytest.mark.parametrize(
    ("text", "fitting"),
    [
        ("5.10", ["5.10.0-9-cloud-amd64"]),
        ("debian:5.10", ["5.10.0-9-cloud-amd64"]),
        ("5.10-generic", ["5.10.0-46-amd64"]),
        ("6.1", ["6.1.0-56-cloud-arm64"]),  # and not 6.12
        ("6.1-rt", ["6.1.0-0.deb11.52-rt-amd64"]),
        ("6.12.115", ["6.12.115+deb13-cloud-arm64", "6.12.115+deb13.1-cloud-arm64"]),
        ("6.12-16k", ["6.12.117+deb13-arm64-16k"]),
        ("5.10.0-46-amd64", ["5.10.0-46-amd64"]),
        ("debian:6.12.115+deb13-cloud-arm64", ["6.12.115+deb13-cloud-arm64"]),
        ("6.12-rt", []),
    ],
)
def test_which_releases_fit(text: str, fitting: list[str]) -> None:
    assert names_release(text)
    wanted = asked(text, "cloud")
    assert [name for name in RELEASES if wanted.fits(parse(name))] == fitting  # type: ignore[arg-type]


def test_where_they_are_looked_for() -> None:
    assert asked("6.12", "").suites == ("trixie",)
    assert asked("5.10.0-46-amd64", "").suites == ("bullseye",)
    assert asked("7.3", "").suites == ("trixie-backports", "sid")
