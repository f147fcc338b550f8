"""`ConformanceSuite`: the kit as a test class. A plugin's own tests hold one subclass:

    from tenon_plugin_sdk.conformance import ConformanceSuite

    class TestConformance(ConformanceSuite):
        platform = "thing"

and pytest collects every check of every level in it, one test a case.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import pytest

from .registry import Case, Check, ConformanceError, NotApplicableError

if TYPE_CHECKING:
    from .plugin import Run


class ConformanceSuite:
    """One platform against the kit.

    platform: its name; `--platform` wins. level: as `--level`, "all" where the command line says nothing. options:
    texts, as `--platform-opt KEY=VALUE`. exceptions: path of conformance.yaml; default: beside the manifest.
    """

    platform: ClassVar[str] = ""
    level: ClassVar[str] = "all"
    profile: ClassVar[str] = "quick"
    options: ClassVar[dict[str, str]] = {}
    exceptions: ClassVar[str | None] = None

    def test_conforms(self, conformance_run: Run, conformance_check: Check, conformance_case: Case) -> None:
        """One check on one case."""
        expired = conformance_run.expired(conformance_check.address(conformance_case))
        if expired is not None:
            pytest.fail(expired, pytrace=False)
        seeds = conformance_run.seeds if conformance_check.is_drawn else 1
        for seed in range(seeds):
            profile = replace(conformance_run.profile, seed=conformance_run.profile.seed + seed)
            try:
                conformance_check.run(conformance_run.subject, profile, conformance_case)
            except NotApplicableError as error:
                pytest.skip(str(error))
            except Exception as error:
                said = str(error) if isinstance(error, ConformanceError) else f"{type(error).__name__}: {error}"
                again = conformance_run.command(conformance_check, conformance_case, profile.seed)
                raise ConformanceError(f"{said}\n    checked: {conformance_check.what}\n    again: {again}") from error
