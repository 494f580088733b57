"""Exceptions."""


class SeekwayError(ValueError):
    """A wrong argument, or an input that cannot be read or run. The text says what to do."""


class TraceError(SeekwayError):
    """A trace cannot be read.

    Attributes:
        path: name of the file, as the text has it.
        line, column: place in a text format, both from 1; ``None`` otherwise.
        record: number of a record of a binary format, from 1; ``None`` otherwise.
        offset_bytes: first byte of that record; ``None`` otherwise.
    """

    def __init__(
        self,
        text: str,
        *,
        path: str = "",
        line: int | None = None,
        column: int | None = None,
        record: int | None = None,
        offset_bytes: int | None = None,
    ) -> None:
        """Of one trace, and where it is known of one record."""
        super().__init__(text)
        self.path = path
        self.line = line
        self.column = column
        self.record = record
        self.offset_bytes = offset_bytes
