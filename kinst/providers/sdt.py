"""The sdt provider: the kernel's tracepoints (Dynamic Tracing Guide, ch. "sdt Provider").

sdt:SUBSYSTEM::NAME is one probe, with a site at each place in the kernel that has the tracepoint.
arg0, arg1, ... are the arguments that the kernel passes to the tracepoint; args[] has their types.

Tested by tests/providers/test_sdt.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from kinst.core.dtypes import DType, StructType
from kinst.core.errors import AbsentError, KinstError
from kinst.core.kernel import Found, Kernel, Provider
from kinst.core.probe import ProbeInterface, ProbeName, ProbePattern, Site
from kinst.core.stability import stability_of
from kinst.core.system import TracepointSite
from kinst.core.types import TypeSource
from kinst.providers.fbt import entry_probe_site


class SdtProvider(Provider):
    """The provider of a probe for each tracepoint, by subsystem and name."""

    name = "sdt"
    stability = stability_of(
        "Evolving/Evolving/Common", "Private/Private/Unknown", "Private/Private/Unknown",
        "Private/Private/ISA", "Private/Private/ISA",
    )  # fmt: skip
    usage = "sdt:SUBSYSTEM::NAME names tracepoints"
    interface = ProbeInterface(has_locals=False)

    def argument_types(self, pattern: ProbePattern, types: TypeSource) -> Sequence[DType] | None:
        named = pattern.name and not any(c in pattern.name for c in "*?[")
        if pattern.provider not in ("", self.name) or pattern.function or not named:
            return None
        prototype = types.tracepoint(pattern.name)
        if prototype is None:
            if pattern.provider:
                raise KinstError(f"the kernel's types have no tracepoint {pattern.name}")
            return None
        _, *own = prototype.parameters  # the first one belongs to the tracer
        if any(isinstance(type_, StructType) for type_ in own):
            raise KinstError(
                f"the tracepoint {pattern.name} passes a structure, which args[] cannot show"
            )
        return own

    def argument_names(self, pattern: ProbePattern, types: TypeSource) -> Sequence[str]:
        prototype = types.tracepoint(pattern.name)
        return prototype.names[1:] if prototype is not None else ()

    def match(self, pattern: ProbePattern, kernel: Kernel | None) -> Iterator[Found]:
        if pattern.provider not in ("", self.name) or kernel is None or str(pattern) == ":::":
            return
        if pattern.function or pattern.id:
            return
        plain = pattern.name and not any(c in pattern.name for c in "*?[")
        refusal: KinstError | None = None
        some = False
        for one in kernel.tracepoints(pattern.name or "*"):
            probe = ProbeName(self.name, one.subsystem, "", one.name)
            if not pattern.matches(probe):
                continue
            try:
                sites = kernel.tracepoint_sites(one.name)
            except KinstError as error:
                refusal = refusal or error
                continue
            for site in sites:
                if (found := _site(site, kernel)) is not None:
                    some = True
                    yield Found(probe, found, arguments=site.arguments, switch=site.switch)
        if refusal is not None and (plain or not some):
            raise refusal
        if plain and not some and pattern.provider:
            _check_exists(pattern, kernel)


def _check_exists(pattern: ProbePattern, kernel: Kernel) -> None:
    """Raise AbsentError if the kernel has no tracepoint like a description's but has one of the
    same or of a similar name."""
    subsystems = {one.name: one.subsystem for one in kernel.tracepoints("*")}
    near = get_close_matches(pattern.name, subsystems, 3, 0.7)
    if pattern.name in subsystems:
        near = [pattern.name]
    if near:
        meant = " or ".join(f"{PROVIDER.name}:{subsystems[one]}::{one}" for one in near)
        raise AbsentError(f'no tracepoint named "{pattern.name}"', f"did you mean {meant}?")


def _site(site: TracepointSite, kernel: Kernel) -> Site | None:
    if site.code:
        return Site(site.function, site.address - site.function.address, site.code)
    first = entry_probe_site(site.function, kernel)
    if first is None:
        return None
    return Site(site.function, first.address - site.function.address, first.code)


PROVIDER = SdtProvider()
