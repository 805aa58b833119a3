"""The checks of an audit."""
