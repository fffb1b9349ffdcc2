"""Structured logs on standard error: lines for people on a terminal, JSON otherwise. Never prompts, outputs or keys."""

import logging
import sys
from functools import partial
from typing import Literal

import structlog
from structlog.typing import EventDict, Processor


def configure_logging(level: str, style: Literal["console", "json"], actor: str) -> None:
    """Set up logging of this process; every line names `actor`."""
    structlog.configure(
        processors=[
            partial(_add_actor, actor),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_rendering(style),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # a line in one piece: other processes write there too
    )


def _add_actor(actor: str, _logger: object, _method: str, event: EventDict) -> EventDict:
    event["actor"] = actor
    return event


def _rendering(style: Literal["console", "json"]) -> list[Processor]:
    if style == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(),
        exception_formatter=structlog.dev.plain_traceback,  # the pretty one prints locals: prompts, keys
    )
    return [partial(_on_a_clean_line, renderer) if sys.stderr.isatty() else renderer]


def _on_a_clean_line(render: Processor, logger: object, method: str, event: EventDict) -> str:
    """Another process of the node may have left its progress bar where the cursor is: wipe it, it draws itself anew."""
    return f"\r\x1b[K{render(logger, method, event)!s}"
