"""What a study found: its cells by five rules, tables, figures, and the folder they lie in."""
