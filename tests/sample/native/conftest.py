"""Every test of the native engine checks the books of its fast path."""

from tests.sample.native.books import checked_books as checked_books
