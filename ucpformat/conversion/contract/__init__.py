"""What an importer or exporter is given and gives: jobs, sources, contents, files; no format and no engine."""
