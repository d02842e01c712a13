// First-order estimate of the error that rounding must be granted in attention's results, however a kernel orders its
// work, from norms and probabilities alone. With u = 2^-24, fp32's unit roundoff:
//   * sums are fp32: a dot product x.y is off by u |x| |y|, so a score T by u scale |q| |k| f', where f' = dT/dS;
//   * a weight exp(T - maximum) is off by g = sqrt(16 u^2 + (u |LSE|)^2) of itself: exp's argument is of LSE's size;
//   * backward recomputes P as exp(T - LSE) from a stored LSE, which adds u |LSE|. Both grant no more than
//     kLargestLse: beyond it a kernel must keep maximum and sum apart;
//   * P and dS are stored in the dtype, with a relative error r of half its unit roundoff (none for fp32). The largest
//     weight of a row is 1 before normalisation, and exact, which is why r comes with 1 - P;
//   * D = rowsum(dO O) is computed from O as stored, with an error R known exactly but for its sign.
// A probability changes by P_ij (dT_ij - sum_l P_il dT_il), so
//   e_ij^2 = P_ij^2 ((u scale |q_i|)^2 ((1 - 2 P_ij) (f'_ij |k_j|)^2 + sum_l (P_il f'_il |k_l|)^2)
//                    + g^2 (1 - 2 P_ij + sum_l P_il^2) + r^2 (1 - P_ij)^2)
// is its squared error, and O is off by the sum of e_ij (v_j - O_i). For the score's gradient dS_ij = P_ij (dP_ij -
// D_i) f'_ij, with the stored LSE's error in e_ij:
//   w_ij^2 = f'_ij^2 (P_ij^2 ((u |dO_i|)^2 (|v_j|^2 + |O_i|^2) + (2 R_i)^2) + e_ij^2 (dP_ij - D_i)^2).
// Errors of different pairs are independent, so sums over pairs add in squares. R is common to a row, so that it does
// not average out over the elements: it is taken twice.
#pragma once

#include "tilewright/reference/Attention.h"
#include <vector>

namespace tilewright {

/// One query row as the model sees it; arrays are indexed by key and count where `visible` is set.
struct RowForNoise {
  int64_t begin = 0, end = 0;
  const uint8_t *visible = nullptr;
  const double *p = nullptr, *slope = nullptr; ///< slope may be null: 1 everywhere
  const double *dP = nullptr;                  ///< null: forward only
  double delta = 0, lse = 0;                   ///< delta: rowsum(P dP)
  const double *q = nullptr, *o = nullptr, *dO = nullptr;
};

/// The keys and values of one kv head, and the sums over its columns. Not thread-safe.
class RoundingModel {
public:
  /// `k` and `v`, row-major, must outlive the model.
  RoundingModel(const std::vector<double> &k, const std::vector<double> &v, const Problem &problem);

  void addRow(const RowForNoise &row);
  /// With the columns' sums taken in.
  RoundingNoise finish();

private:
  struct KeyNorms {
    double k2, kLargest, v2, vLargest, sumK = 0, sumV = 0;
  };
  struct RowNorms {
    double lseError2 = 0, qLargest2 = 0, dO2 = 0, dOLargest2 = 0, o2 = 0, delta2 = 0;
  };

  RowNorms normsOf(const RowForNoise &row) const;
  /// Adds a pair to the column's sums; returns its part of the row's sum for dQ.
  double addGradient(KeyNorms &key, const RowNorms &row, double p, double f2, double e2, double centred) const;
  /// Largest |v_j - O|.
  double distance(int64_t key, const double *o) const;
  double stored(double x) const;

  DType dtype;
  const std::vector<double> &values;
  int64_t dimQK, dimV;
  std::vector<KeyNorms> keys;
  double scale, storage2 = 0; ///< storage2: r^2
  RoundingNoise noise;
};

/// Rows and keys that hold NaN or infinities say nothing about rounding: larger finite values only.
void takeLarger(double &most, double value);
void takeLarger(RoundingNoise &most, const RoundingNoise &value);

} // namespace tilewright
