"""One module per noun; each defines a `noun` of verbs that `app.cli.main` gathers."""
