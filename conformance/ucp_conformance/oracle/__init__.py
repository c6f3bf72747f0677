"""What is right, decided by small and slow plain Python that shares no code with any implementation."""
