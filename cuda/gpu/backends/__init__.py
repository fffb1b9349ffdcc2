"""Where kernels run: one interface (`backend`), on a GPU (`gpu`) or in the emulator (`emulated`)."""
