"""The one kind of error that a person can mend by giving other input."""


class UserError(ValueError):
    """Bad input: a flag, a file or a value. The text says what is wrong and what to do.

    In Python it is a ``ValueError`` like any other; on the command line it ends the run with
    its sentence alone (``toolkit.show_user_errors_as_sentences``).
    """
