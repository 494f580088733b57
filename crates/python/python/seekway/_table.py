"""Tables as Arrow keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seekway import _native

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


class Table:
    """A table that any library takes which reads Arrow, without a copy."""

    def __init__(self, records: _native.Records) -> None:
        """By this package only."""
        self._records = records

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's C stream: any library that reads Arrow takes this object, without a copy."""
        return self._records.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        """Rows."""
        return len(self._records)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return self._records.columns

    def to_arrow(self) -> pyarrow.Table:
        """As a table of Arrow, without a copy."""
        import pyarrow

        return pyarrow.table(self)

    def to_pandas(self) -> pandas.DataFrame:
        """As pandas."""
        frame: pandas.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> polars.DataFrame:
        """As Polars."""
        import polars

        return polars.DataFrame(self)
