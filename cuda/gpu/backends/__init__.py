"""Where kernels run: one interface (`cuda.kernels.backend`), on a GPU (`gpu`) or in the emulator (`emulated`)."""
