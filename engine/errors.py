"""Errors of the engine room. What a caller can mend names the field; everything else says what happened."""


class EngineError(Exception):
    """Base of all errors that the engine raises on purpose."""


class ConfigError(EngineError):
    """A start-up option that cannot work: names the option, the value and what is allowed."""

    def __init__(
        self, option: str, value: object, allowed: str, *, problem: str = "is not allowed"
    ) -> None:
        super().__init__(f"{option}: {value!r} {problem}; {allowed}")
        self.option = option
        self.value = value
        self.allowed = allowed


class ModelLoadError(EngineError):
    """The model cannot be found, fetched, understood or placed in memory; one line that says what to do."""


class RequestError(EngineError):
    """A request that is refused before it holds anything. `param` names the field by path."""

    def __init__(self, message: str, *, param: str | None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class OverloadedError(EngineError):
    """Too many requests wait already: try again later."""


class GrammarError(EngineError):
    """A grammar's matcher gave up in the middle of an answer: that sequence ends with an error."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"the grammar cannot go on: {fault}")


class EngineNotReadyError(EngineError):
    """The model is still loading: try again."""


class EngineDeadError(EngineError):
    """The worker thread failed or was shut down; no request can run any more."""
