"""Compare all heads on the same small Sudoku run: python scripts/compare_heads.py [--steps N]."""

from apps.bench.compare_heads import main

if __name__ == "__main__":
    main()
