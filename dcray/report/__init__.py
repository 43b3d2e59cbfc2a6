"""The report of a study: its cells by five rules, tables, figures, and the folder they lie in."""
