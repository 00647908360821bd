"""A new Debian 12 (debootstrap's minbase) in which the README's two commands must work.

One root for all tests: `make setup-all` runs in it, in a checkout whose path has a space; then
variations that users may have are tried, and each package that set-up names is removed once.  The
kernels are this machine's, so that little besides packages is fetched.  Takes minutes, and needs
root; `make test-fresh` runs all tests in such a root, from nothing.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests import ROOT
from tests.setup.fresh_root import BEFOREHAND, FreshRoot, fresh_root
from tests.tiers import ISAS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.getuid() != 0 or not shutil.which("debootstrap"), reason="needs root and debootstrap"
    ),
]

CHECKOUT = "/root/a checkout"
USER = "somebody"
USERS = f"/home/{USER}/a checkout"
# A package that only refers to another.
FILES_IN = {"python3-venv": "python3.11-venv"}
COUNT = ".venv/bin/kinst -q -n 'kinst::vfs_read:0 {{ @ = count(); }}' -c 'wc -c /init' {}"


def packages() -> list[str]:
    """Return every package that set-up names."""
    script = '. setup/tools.sh; echo "$basic_tools$test_tools$all_tools" | cut -s -d: -f2'
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return sorted(set(done.stdout.split()))


def is_installed(root: FreshRoot, package: str) -> bool:
    return "ok installed" in root.run(f"dpkg-query -W -f '${{Status}}' {package}").stdout


@pytest.fixture(scope="module")
def root() -> Iterator[FreshRoot]:
    """The root, in which `make setup-all` was run by root, and `make setup` by a user."""
    with fresh_root() as made:
        made.share_kernels()
        made.put_checkout(CHECKOUT)
        made.good(f"useradd --create-home {USER}")
        made.good("make setup-all", CHECKOUT, DEBIAN_FRONTEND="noninteractive")
        made.share_kernels(USER)
        made.put_checkout(USERS, USER)
        made.good("make setup-all", USERS, USER)
        yield made


def test_readme_says_what_is_needed_beforehand() -> None:
    assert f"`apt-get install {BEFOREHAND.split()[-1]}`" in (ROOT / "README.md").read_text()


def test_everything_is_there_and_set_up_has_no_more_to_do(root: FreshRoot) -> None:
    assert root.good("setup/setup.sh all", CHECKOUT) == ""
    assert [name for name in packages() if not is_installed(root, name)] == []


@pytest.mark.parametrize("isa", ISAS)
def test_a_kernel_of_each_instruction_set_is_traced(root: FreshRoot, isa: str) -> None:
    assert root.good(COUNT.format(f"--vm={isa}"), CHECKOUT).split()[-1].isdecimal()


def test_what_tests_compare_with_is_there(root: FreshRoot) -> None:
    """These tests compile for three instruction sets and run every tool but QEMU."""
    chosen = "tests/image tests/isa/riscv64/test_relocate.py tests/cli/test_inlinecall.py"
    root.good(f".venv/bin/python -m pytest -q -m 'not slow' {chosen}", CHECKOUT)


def test_root_without_home_in_the_posix_locale(root: FreshRoot) -> None:
    said = root.good("make trace", CHECKOUT, HOME=None, LC_ALL="POSIX")
    assert "trace: done in" in said


def test_a_user_with_a_locale_that_is_not_there(root: FreshRoot) -> None:
    said = root.good("make trace", USERS, USER, LC_ALL="de_DE.UTF-8")
    assert "trace: done in" in said


def test_a_checkout_that_cannot_be_written_to(root: FreshRoot) -> None:
    """One line if it is not set up; if it is, it works."""
    root.put_checkout("/srv/checkout")
    done = root.run("make setup", "/srv/checkout", USER)
    assert done.returncode == 2
    assert done.stdout.splitlines()[0] == (
        "setup: /srv/checkout cannot be written to, and .venv is made in it: "
        "copy the checkout elsewhere"
    )
    place = shlex.quote(USERS)
    read_only = f"mount --bind {place} {place} && mount -o remount,bind,ro {place} && cd {place}"
    run = f"make setup && make lint && {COUNT.format('')}"
    root.good(f"{read_only} && su {USER} -c {shlex.quote(run)}")


@pytest.mark.parametrize("package", packages())
def test_a_package_that_was_removed_is_named_and_got_again(root: FreshRoot, package: str) -> None:
    root.good(f"dpkg --remove --force-depends {package} {FILES_IN.get(package, '')}")
    # A virtual environment works without the module that made it.
    again = "rm -rf .venv/bin/python* && " if package == "python3-venv" else ""
    done = root.run(f"{again}setup/setup.sh all", USERS, USER)
    assert done.returncode == 1
    named = [line for line in done.stdout.splitlines() if "does not work" in line]
    assert named and all(package in line.split(":")[-1].split() for line in named), done.stdout
    said = root.good(f"{again}setup/setup.sh all", CHECKOUT)
    assert said.splitlines()[0].startswith("setup: installing packages:")
    assert is_installed(root, package)
