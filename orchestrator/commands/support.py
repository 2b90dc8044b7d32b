"""mode=support: which problems each backend supports on each architecture, as the page docs/support.md."""

from __future__ import annotations

from orchestrator.commands.invocation import OK, Invocation
from orchestrator.config.settings import Settings
from orchestrator.errors import UserError


def execute(invocation: Invocation[Settings]) -> int:
    """Prints the page. Raises UserError for an entry of `adapters` that is no plugin."""
    from orchestrator.reporting import support_page

    plugins = invocation.settings.adapters
    try:
        print(support_page.page(plugins), end="")
    except (ImportError, ValueError, AttributeError) as error:
        raise UserError(f"adapters={list(plugins)}: {error}; allowed: modules with a tuple ADAPTERS") from None
    return OK
