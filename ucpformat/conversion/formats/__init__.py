"""The formats that come with ucpformat, one package each; none imports another."""
