"""What every package uses: errors, frozen values, argument checks, file readers, the registry. Imports nothing."""
