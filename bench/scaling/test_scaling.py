"""What counts as growing too fast. `python3 -m unittest discover bench/scaling`"""

import unittest

import growth


class Linear(unittest.TestCase):
    RANKS = (2, 4, 8, 16)

    def judge(self, of, noise=0.0):
        return growth.linear([(ranks, of(ranks)) for ranks in self.RANKS], noise)

    def test_straight_and_flat_are_well(self):
        for of in (lambda n: 7, lambda n: 3 + 2 * n, lambda n: 100 - n, lambda n: n**0.5):
            self.assertFalse(self.judge(of).is_superlinear())
        self.assertAlmostEqual(self.judge(lambda n: 3 + 2 * n).per_peer, 2)

    def test_squares_are_seen(self):
        for of in (lambda n: n * n, lambda n: 50 + n * n, lambda n: 2**n):
            self.assertTrue(self.judge(of).is_superlinear())

    def test_what_is_small_is_noise(self):
        self.assertFalse(self.judge(lambda n: 1000 + (90 if n == 16 else 0)).is_superlinear())
        self.assertTrue(self.judge(lambda n: 10 + (90 if n == 16 else 0)).is_superlinear())
        self.assertFalse(self.judge(lambda n: 10 + (90 if n == 16 else 0), 100).is_superlinear())

    def test_three_points_are_enough_and_two_are_not(self):
        self.assertTrue(growth.linear([(2, 4), (4, 16), (8, 64)]).is_superlinear())
        self.assertFalse(growth.linear([(2, 4), (4, 8), (8, 16)]).is_superlinear())
        with self.assertRaises(ValueError):
            growth.linear([(2, 4), (4, 16)])


class Exponents(unittest.TestCase):
    def test_they_follow_by_hand(self):
        found = growth.exponents([(1, 5), (4, 20), (16, 320)])
        self.assertEqual([x for x, _ in found], [4, 16])
        self.assertAlmostEqual(found[0][1], 1)
        self.assertAlmostEqual(found[1][1], 2)


if __name__ == "__main__":
    unittest.main()
