package cpu

// dots fills scores[i] with the product of q and row i of rows, which are
// len(q) apart. len(scores) must be a multiple of 8. Each sum runs in the order of the
// elements, so it does not depend on the others.
func dots(scores, q, rows []float32) {
	n := len(q)
	for i := 0; i+8 <= len(scores); i += 8 {
		block := rows[i*n : (i+8)*n]
		r0, r1, r2, r3 := block[:n], block[n:][:n], block[2*n:][:n], block[3*n:][:n]
		r4, r5, r6, r7 := block[4*n:][:n], block[5*n:][:n], block[6*n:][:n], block[7*n:][:n]
		var s0, s1, s2, s3, s4, s5, s6, s7 float32
		for d, x := range q {
			s0 += x * r0[d]
			s1 += x * r1[d]
			s2 += x * r2[d]
			s3 += x * r3[d]
			s4 += x * r4[d]
			s5 += x * r5[d]
			s6 += x * r6[d]
			s7 += x * r7[d]
		}
		s := scores[i:][:8]
		s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7] = s0, s1, s2, s3, s4, s5, s6, s7
	}
}

// accumulate adds weights[i] times row i of rows, which are len(out) apart, to
// out. len(weights) must be a multiple of 4.
func accumulate(out, weights, rows []float32) {
	n := len(out)
	for i := 0; i+4 <= len(weights); i += 4 {
		w := weights[i:][:4]
		w0, w1, w2, w3 := w[0], w[1], w[2], w[3]
		block := rows[i*n : (i+4)*n]
		r0, r1, r2, r3 := block[:n], block[n:][:n], block[2*n:][:n], block[3*n:][:n]
		for d, x := range out {
			out[d] = x + w0*r0[d] + w1*r1[d] + w2*r2[d] + w3*r3[d]
		}
	}
}

func scale(x []float32, by float32) {
	for i := range x {
		x[i] *= by
	}
}
