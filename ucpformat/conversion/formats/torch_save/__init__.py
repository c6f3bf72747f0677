"""Files of ``torch.save`` with state dicts, and directories of them; read without torch and without running pickles."""
