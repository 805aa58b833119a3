"""`python -m audit` is mqaudit."""

from audit.cli import main

main()
