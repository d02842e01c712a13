"""What every test of the built program needs: running it, its file formats, and an independent idea of what is right."""
