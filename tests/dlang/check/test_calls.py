"""Subroutines in the checker: their types, and libdtrace's errors for calls that do not fit."""

from __future__ import annotations

import pytest

from kinst.core.dtypes import INT, INT64, PointerType, StringType, VoidType
from tests.dlang.dhelp import error, typed, value

# From the Dynamic Tracing Guide, "Actions and Subroutines": the least and the most arguments, a
# good call, and its value.
CALLS = [
    ("alloca", 1, 1, "alloca(10)", PointerType(VoidType())),
    ("basename", 1, 1, "basename(execname)", StringType()),
    ("cleanpath", 1, 1, "cleanpath(execname)", StringType()),
    ("copyin", 2, 2, "copyin(arg0, 4)", PointerType(VoidType())),
    ("copyinstr", 1, 2, "copyinstr(arg0, 4)", StringType()),
    ("dirname", 1, 1, "dirname(execname)", StringType()),
    ("index", 2, 3, "index(execname, execname, 4)", INT),
    ("rindex", 2, 3, "rindex(execname, execname, 4)", INT),
    ("inet_ntoa", 1, 1, "inet_ntoa((int *)arg0)", StringType()),
    ("inet_ntoa6", 1, 1, "inet_ntoa6((char *)arg0)", StringType()),
    ("inet_ntop", 2, 2, "inet_ntop(2, (char *)arg0)", StringType()),
    ("lltostr", 1, 2, "lltostr(arg0, 16)", StringType()),
    ("progenyof", 1, 1, "progenyof(1)", INT),
    ("rand", 0, 0, "rand()", INT),
    ("strchr", 2, 2, "strchr(execname, 'a')", StringType()),
    ("strjoin", 2, 2, "strjoin((char *)arg0, \"a\")", StringType()),
    ("strrchr", 2, 2, "strrchr(execname, 'a')", StringType()),
    ("strstr", 2, 2, "strstr(execname, \"a\")", StringType()),
    ("strtok", 2, 2, "strtok(NULL, \"a\")", StringType()),
    ("strtoll", 1, 2, "strtoll(execname, 8)", INT64),
    ("substr", 2, 3, "substr(execname, 1, 2)", StringType()),
    ("tolower", 1, 1, "tolower(execname)", StringType()),
    ("toupper", 1, 1, "toupper(execname)", StringType()),
]  # fmt: skip
SIZED = {"strlen(execname)": (8, False), "htons(1)": (2, False), "ntohs(1)": (2, False),
         "htonl(1)": (4, False), "ntohl(1)": (4, False), "htonll(1)": (8, False),
         "ntohll(1)": (8, False), "strtoll(execname)": (8, True)}  # fmt: skip


@pytest.mark.parametrize(("name", "least", "most", "call", "type_"), CALLS)
def test_results_and_numbers_of_arguments(
    name: str, least: int, most: int, call: str, type_: object
) -> None:
    assert value(call).type == type_
    for count in range(most + 3):
        if least <= count <= most:
            continue
        found = error(f"BEGIN {{ trace({name}({', '.join(['execname'] * count)})); }}")
        args = "1 arg" if count == 1 else f"{count} args"
        expected = f"at least {least}" if least < most else str(least)
        assert found.tag == "D_PROTO_LEN"
        assert found.message == (
            f"{name}( ) prototype mismatch: {args} passed, {expected} expected"
        )


@pytest.mark.parametrize(("call", "shape"), SIZED.items())
def test_integers_have_their_sizes(call: str, shape: tuple[int, bool]) -> None:
    type_ = value(call).type
    assert (type_.size, type_.signed) == shape  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("call", "number", "prototype", "argument"),
    [
        ("strlen(1)", 1, "const char *", "int"),
        ("strlen(curthread)", 1, "const char *", "void *"),
        ("strchr(execname, execname)", 2, "char", "string"),
        ("substr(execname, execname)", 2, "int64_t", "string"),
        ("strjoin(execname, pid)", 2, "const char *", "pid_t"),
        ("copyinstr(execname)", 1, "uintptr_t", "string"),
        ("copyinstr(curthread)", 1, "uintptr_t", "void *"),
        ("copyin(arg0, execname)", 2, "size_t", "string"),
        ("inet_ntoa(4)", 1, "in_addr_t *", "int"),
        ("progenyof(execname)", 1, "pid_t", "string"),
        ("lltostr(execname)", 1, "int64_t", "string"),
    ],
)
def test_arguments_that_do_not_fit(call: str, number: int, prototype: str, argument: str) -> None:
    found = error(f"BEGIN {{ trace({call}); }}")
    name = call.partition("(")[0]
    assert found.tag == "D_PROTO_ARG"
    assert found.message == (
        f"{name}( ) argument #{number} is incompatible with prototype: "
        f"prototype: {prototype}, argument: {argument}"
    )


@pytest.mark.parametrize(
    "name",
    ["mutex_owned", "mutex_owner", "mutex_type_adaptive", "mutex_type_spin", "rw_iswriter",
     "rw_read_held", "rw_write_held", "sx_exclusive_held", "sx_isexclusive", "sx_shared_held",
     "msgsize", "msgdsize", "getf"],
)  # fmt: skip
def test_other_kernels_subroutines_say_so(name: str) -> None:
    found = error(f"BEGIN {{ trace({name}(0)); }}")
    assert found.tag == "D_FUNC_UNDEF"
    assert found.message.startswith(f"{name}( ) is not available: ")


@pytest.mark.parametrize("name", ["ipl", "jid", "jailname", "zonename"])
def test_other_kernels_variables_say_so(name: str) -> None:
    found = error(f"BEGIN {{ trace({name}); }}")
    assert found.tag == "D_IDENT_UNDEF"
    assert found.message.startswith(f"{name} is not available: ")


def test_null() -> None:
    assert isinstance(value("strchr(execname, 97) == NULL"), typed.Binary)
    assert isinstance(value('0 != strtok(NULL, ",")'), typed.Binary)
    assert error("BEGIN { trace(execname < NULL); }").tag == "D_OP_INCOMPAT"


def test_nothing_comes_of_bcopy() -> None:
    assert error("BEGIN { trace(bcopy(alloca(1), alloca(1), 1)); }").tag == "D_TRACE_VOID"
    assert error("BEGIN { x = bcopy(alloca(1), alloca(1), 1); }").tag == "D_OP_INCOMPAT"


def test_names_of_subroutines_are_taken() -> None:
    assert error("BEGIN { trace(strlen); }").tag == "D_IDENT_BADREF"
    assert error("int strlen; BEGIN { }").tag == "D_DECL_IDRED"
